"""What was measured of a fleet, for the simulator to reckon with: profiles and traces."""
