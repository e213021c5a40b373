"""What paths given on the command line mean: readable or not, trace files, runs, URLs of object stores."""
