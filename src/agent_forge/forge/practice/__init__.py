"""What the phases that practise exercises share: the model that answers, exercises from text, and measuring."""
