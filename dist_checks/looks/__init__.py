"""What is looked at on one device: of a recipe's model and data, or of those of a script."""
