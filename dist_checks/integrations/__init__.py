"""The probe where a framework owns the loop. Each module imports its framework."""
