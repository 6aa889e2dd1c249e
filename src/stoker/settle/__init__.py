"""After a run has ended: a verified copy, then the meter; spending and notifications. Changes when an end does."""
