"""The SQL of MySQL and MariaDB, as far as statements have to be read."""
