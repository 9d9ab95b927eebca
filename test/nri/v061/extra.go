package main

// NRI 0.6.1 has no validators, and no updates of pods.
