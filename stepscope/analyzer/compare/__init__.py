"""What changed between two runs, or two sets of runs, and is it more than noise?"""
