/** The longest time that setTimeout takes, in milliseconds: a longer one fires at once. */
export const maxTimer = 2 ** 31 - 1;
