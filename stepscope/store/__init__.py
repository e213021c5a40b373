"""Run directories on disk: lists of runs, their kept analyses, and the steps that their ranks recorded."""
