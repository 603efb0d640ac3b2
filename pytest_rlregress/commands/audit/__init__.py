"""The command ``rlregress audit``; its checks are ``pytest_rlregress.audit``."""
