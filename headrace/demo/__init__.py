"""The demo: real readings through Kafka and Spark into three stores, which survive what is done to them."""
