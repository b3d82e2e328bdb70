"""``python -m simulations`` is ``swarm-sim``."""

from simulations.main import main

if __name__ == "__main__":
    main()
