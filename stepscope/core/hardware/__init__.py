"""GPUs as hardware: data sheets, links, device identity, health, and XIDs."""
