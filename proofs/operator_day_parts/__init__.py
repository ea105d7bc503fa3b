"""Parts of the proof operator_day: site, crew, the script's own book, intruders, figures."""
