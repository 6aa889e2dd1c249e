"""`report.html`: one page of a run to keep, made of its run directory. Changes when the page shows something else."""
