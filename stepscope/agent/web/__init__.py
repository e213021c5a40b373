"""HTTP server of the agent: TLS, users, routes and connections; the web config file of Prometheus' exporters."""
