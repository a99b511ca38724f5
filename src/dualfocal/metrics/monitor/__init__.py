"""Monitoring of calibration over time, with a bound on false alarms over the whole stream."""
