"""What a model can do, with standard errors."""
