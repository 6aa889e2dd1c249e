"""Run files of other trainers, read as ours. Changes when theirs do. Reads their files; writes none."""
