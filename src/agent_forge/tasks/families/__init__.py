"""The task families that come with the package, one module each or one for several of a kind."""
