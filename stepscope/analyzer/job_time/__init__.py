"""Training time of a job from the step records of all ranks: what it is made of, and what each loss costs."""
