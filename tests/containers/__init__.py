"""Tests on an engine of containers (``make containers``): both images and Compose, as a user of the pages has them."""
