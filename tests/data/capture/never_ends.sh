torchrun train.py
echo $$ > "$LOG_DIR/pid"
(trap "" TERM; sleep 600) &
echo $! > "$LOG_DIR/child"
wait
