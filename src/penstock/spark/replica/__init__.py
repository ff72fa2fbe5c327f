"""What `to = "replicate"` is made of: a batch's steps, a pipeline's place, and each destination."""
