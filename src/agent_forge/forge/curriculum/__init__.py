"""The curriculum: exercises from the level where a model is at home up to a target, one level after the other."""
