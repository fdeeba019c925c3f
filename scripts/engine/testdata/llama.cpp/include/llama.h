/* A header for the stub: only its place matters. */
