"""Starts programs of ours on this machine, and collects what a plan follows from. Changes when a program is added."""
