"""What logs say, line by line: the decoration of launchers and loggers, engines, Ray."""
