"""Statistical inference: noise floors, tests and intervals, for independent, weighted and clustered samples."""
