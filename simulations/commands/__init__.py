"""The commands of ``swarm-sim``, one file each; `simulations.main` gathers them."""
