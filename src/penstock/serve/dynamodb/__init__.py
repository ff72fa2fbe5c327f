"""DynamoDB's protocol over an embedded store: its streams, and the data plane that fills them.

One HTTP port serves both; any DynamoDB client reads and writes it unmodified. What is offered and
what is not: docs/reference/dynamodb.md.
"""
