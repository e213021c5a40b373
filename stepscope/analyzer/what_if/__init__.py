"""What-if: the step's time with one cause removed, by replay of the job's dependency graph."""
