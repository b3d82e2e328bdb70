"""``python -m swarm.cli`` is ``swarm``."""

from swarm.cli.main import main

if __name__ == "__main__":
    main()
