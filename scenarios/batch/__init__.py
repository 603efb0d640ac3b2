"""What travels between rollout and trainer."""
