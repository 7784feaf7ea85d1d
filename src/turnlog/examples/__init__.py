"""Sample sessions in the harness format; `turnlog import --examples` brings them into a store."""
