"""Answers that a run generates while it trains: what that takes of memory and time. Changes when a sampler does."""
