"""`python -m agent_forge` is `agent-forge`."""

from agent_forge.cli import main

if __name__ == "__main__":
    main()
