"""Programs with queues: their stages run independently, and a queue decides which groups an update takes."""
