"""What every learner shares: split, regress, refine, conditioning, certify, diagnose."""
