"""What every durable storage shares: the contract, salvage and verification."""
