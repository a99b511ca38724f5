"""The commands that the lab adds to `dualfocal`: train, study, runs, data and paper."""
