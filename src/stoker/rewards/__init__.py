"""How good a completion is: rewards of the run file, computed in processes of their own with limits. No torch."""
