"""Rewards, advantages and losses."""
