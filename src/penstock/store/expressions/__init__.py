"""DynamoDB's expressions, and the parameters that came before them, as conditions and updates."""
