"""SQL over live and sealed rows."""
