"""Regression harness for the stack that trains LLMs with RL. See README.md."""
