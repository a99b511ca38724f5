"""One look for all figures: colours, and how they are saved."""

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#BBBBBB"  # Okabe-Ito: told apart with any colour vision
