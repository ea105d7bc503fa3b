"""nsq_to_file as a program: each flag has its effect, and kills lose nothing that was finished."""
