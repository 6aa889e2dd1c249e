"""Machines reached by ssh: known hosts, keys, what a probe finds, power, mirrors. Changes when a provider does."""
