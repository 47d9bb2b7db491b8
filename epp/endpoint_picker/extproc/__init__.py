"""The picker's processor of the ext-proc protocol: reads requests and responses, answers with the pick."""
