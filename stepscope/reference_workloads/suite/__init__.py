"""How well does the analysis do on runs whose one fault is known? Cases, runs, scores, report; a file each."""
